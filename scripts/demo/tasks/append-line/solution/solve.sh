#!/bin/bash
set -e
cd /app
echo "done" >>todo.txt
