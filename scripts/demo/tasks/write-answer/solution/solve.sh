#!/bin/bash
set -e
cd /app
echo no >answer.txt
