#!/bin/sh
# Keep a conversation on its replica with curl.
set -eu
url="${OPENAI_BASE_URL:-http://localhost:8000/v1}/chat/completions"

session=$(curl -sS -D - -o /dev/null "$url" -H 'Content-Type: application/json' \
  -d '{"model": "qwen", "messages": [{"role": "user", "content": "Hello"}]}' |
  sed -n 's/^x-session-id: *//Ip' | tr -d '\r')

curl -sS -N "$url" -H 'Content-Type: application/json' -H "X-Session-Id: $session" \
  -d '{"model": "qwen", "stream": true, "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there."},
        {"role": "user", "content": "Say more"}]}'
