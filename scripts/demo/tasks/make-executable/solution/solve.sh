#!/bin/bash
set -e
cd /app
chmod +x build.sh
