#!/bin/bash
mkdir -p /logs/verifier
if [ ! -e /app/a.txt ] && [ "$(cat /app/c.txt)" = "the text" ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
