#!/bin/bash
mkdir -p /logs/verifier
if [ -x /app/build.sh ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
