#!/bin/bash
set -e
cd /app
echo ok >status.txt
