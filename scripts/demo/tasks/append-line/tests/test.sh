#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/todo.txt)" = "$(printf "buy milk\ncall home\ndone")" ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
