#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/answer.txt)" = no ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
