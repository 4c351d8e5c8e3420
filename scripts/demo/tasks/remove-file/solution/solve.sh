#!/bin/bash
set -e
cd /app
rm data.bak
