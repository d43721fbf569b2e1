#!/usr/bin/env bash
# The API by hand: models, one answer, a stream, why it went where it went, a workflow of two calls.
#
#     examples/clients/curl.sh http://127.0.0.1:8080/v1 m1
set -euo pipefail
base_url=${1:-http://127.0.0.1:8080/v1}
model=${2:-m1}

ask() {  # ask PROMPT [curl options...]: one chat completion
  local prompt=$1
  shift
  curl --silent --show-error --fail-with-body "$base_url/chat/completions" \
    --header 'content-type: application/json' \
    --header "authorization: Bearer ${OPENAI_API_KEY:-unused}" \
    --data "{\"model\": \"$model\", \"max_tokens\": 16,
             \"messages\": [{\"role\": \"user\", \"content\": \"$prompt\"}]${body_extra:-}}" \
    "$@"
  echo
}

curl --silent --show-error --fail-with-body "$base_url/models" \
  --header "authorization: Bearer ${OPENAI_API_KEY:-unused}"
echo

ask 'Name a river.'

body_extra=', "stream": true' ask 'Name a mountain.' --no-buffer

# The answer's headers say which backend was chosen, and what every candidate scored.
ask 'Name a lake.' --header 'x-hexsage-explain: true' --dump-header - --output /dev/null

workflow=(--header "x-workflow-id: by-hand-$$" --header 'x-workflow-name: by-hand'
  --header 'x-workflow-deadline-ms: 30000')
ask 'Name a sea.' "${workflow[@]}" --header 'x-workflow-stage: first'
ask 'Name an island in it.' "${workflow[@]}" --header 'x-workflow-stage: second' \
  --header 'x-workflow-final: true'
