"""Ask a server through langchain-openai and print the answers as JSON: ``langchain_program.py URL MODEL``."""

import asyncio
import json
import sys

import openai
from langchain_openai import ChatOpenAI, OpenAI

url, model = sys.argv[1:]
COMMON = {
    "base_url": f"{url}/v1",
    "api_key": "none",
    "model": model,
    "temperature": 0,
    "max_tokens": 24,
    "max_retries": 0,
}
MESSAGES = [("system", "Answer."), ("human", "Hello")]

text, chat = OpenAI(**COMMON), ChatOpenAI(**COMMON)
chunks = list(chat.stream(MESSAGES))
answer = chat.invoke(MESSAGES)
try:
    ChatOpenAI(**{**COMMON, "model": "another"}).invoke(MESSAGES)
    refusal = ""
except openai.NotFoundError as error:
    refusal = str(error.code)
print(
    json.dumps(
        {
            "completion": text.invoke("def area("),
            "completion_stream": "".join(text.stream("def area(")),
            "completions": [each[0].text for each in text.generate(["def area(", "class "]).generations],
            "chat": answer.content,
            "chat_usage": answer.usage_metadata["output_tokens"],
            "chat_reason": answer.response_metadata["finish_reason"],
            "chat_stream": "".join(chunk.content for chunk in chunks),
            "chat_async": asyncio.run(chat.ainvoke(MESSAGES)).content,
            "refusal": refusal,
        }
    )
)
