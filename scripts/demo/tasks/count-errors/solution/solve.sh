#!/bin/bash
set -e
cd /app
grep -c ERROR server.log >count.txt
