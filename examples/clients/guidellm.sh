#!/bin/sh
# Load a router with GuideLLM: a run has the same headers throughout, so each conversation is a run of its own.
# TOKENIZER is a name in Hugging Face's cache, or a folder.
set -eu
url="${OPENAI_BASE_URL:-http://localhost:8000/v1}"

for talk in 1 2 3; do
  guidellm run --disable-console --output "kind=json,path=talk-$talk.json" \
    --backend '{"kind": "openai_http", "model": "qwen", "target": "'"${url%/v1}"'",
                "extras": {"headers": {"X-Session-ID": "load-'$talk'"}}}' \
    --tokenizer "kind=hf_auto,model=$TOKENIZER" --profile kind=synchronous --constraint kind=max_requests,count=4 \
    --data kind=synthetic_text,prompt_tokens=200,output_tokens=20,turns=4 &
done
wait

curl -sS "${url%/v1}/health" | grep -oE '"(sessions|routed|affinity_hits)":[0-9]+'
