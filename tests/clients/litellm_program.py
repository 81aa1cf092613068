"""Ask a server through litellm and print the answers as JSON: ``litellm_program.py URL MODEL``."""

import json
import sys

import litellm

url, model = sys.argv[1:]
COMMON = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 24}
MESSAGES = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Hello"}]

litellm.suppress_debug_info = True


def chat(provider: str, **more: object) -> litellm.ModelResponse:
    return litellm.completion(model=f"{provider}/{model}", messages=MESSAGES, **COMMON, **more)


def complete(**more: object) -> litellm.TextCompletionResponse:
    name = f"text-completion-openai/{model}"
    return litellm.text_completion(model=name, prompt="def area(", **COMMON, **more)


streamed = list(chat("openai", stream=True, stream_options={"include_usage": True}))
answer = chat("openai")
try:
    litellm.completion(model="openai/another", messages=MESSAGES, **COMMON)
    refusal = ""
except litellm.NotFoundError as error:
    refusal = type(error).__name__
print(
    json.dumps(
        {
            "completion": complete().choices[0].text,
            "completion_stream": "".join(each.choices[0].text or "" for each in complete(stream=True)),
            "chat": answer.choices[0].message.content,
            "chat_usage": answer.usage.completion_tokens,
            "chat_stream": "".join(each.choices[0].delta.content or "" for each in streamed),
            "chat_stream_usage": streamed[-1].usage.completion_tokens,
            "chat_as_vllm": chat("hosted_vllm", extra_body={"num_draft_tokens": 0})
            .choices[0]
            .message.content,
            "refusal": refusal,
        }
    )
)
