#!/bin/sh
# Load a router with AIPerf: six conversations of four turns, each under an id of its own.
# TOKENIZER is a name in Hugging Face's cache, or a folder.
set -eu
url="${OPENAI_BASE_URL:-http://localhost:8000/v1}"

aiperf profile --model qwen --url "${url%/v1}" --endpoint-type chat --streaming --ui none \
  --tokenizer "$TOKENIZER" --session-header X-Session-ID --concurrency 3 --isl 200 --osl 20 \
  --conversation-num 6 --conversation-turn-mean 4 --conversation-turn-stddev 0

curl -sS "${url%/v1}/health" | grep -oE '"(sessions|routed|affinity_hits)":[0-9]+'
