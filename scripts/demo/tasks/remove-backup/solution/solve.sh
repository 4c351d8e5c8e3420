#!/bin/bash
set -e
cd /app
rm old.bak
