#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/count.txt)" = 3 ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
