#!/bin/bash
set -e
cd /app
mv a.txt c.txt
