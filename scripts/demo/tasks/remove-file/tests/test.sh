#!/bin/bash
mkdir -p /logs/verifier
if [ ! -e /app/data.bak ] && [ -e /app/data.csv ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
