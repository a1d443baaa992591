"""Keep a conversation on its replica with LangChain: bind an id of your own to its model."""

from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="qwen")  # OPENAI_BASE_URL, OPENAI_API_KEY
talk = model.bind(extra_headers={"X-Session-Id": uuid4().hex})
messages = []

for text in ("Hello", "Say more"):
    messages.append(HumanMessage(text))
    messages.append(talk.invoke(messages))
    print(messages[-1].text)

messages.append(HumanMessage("Go on"))
for chunk in talk.stream(messages):
    print(chunk.text, end="")
