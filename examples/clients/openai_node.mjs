// Keep a conversation on its replica with the openai SDK for Node.
import OpenAI from "openai";

const client = new OpenAI(); // OPENAI_BASE_URL=http://localhost:8000/v1, OPENAI_API_KEY=anything
const messages = [];
let headers = {};

for (const text of ["Hello", "Say more", "Go on"]) {
  messages.push({ role: "user", content: text });
  const { data, response } = await client.chat.completions
    .create({ model: "qwen", messages, stream: true }, { headers })
    .withResponse();
  headers = { "X-Session-Id": response.headers.get("x-session-id") };
  let answer = "";
  for await (const chunk of data) answer += chunk.choices[0]?.delta?.content ?? "";
  messages.push({ role: "assistant", content: answer });
  console.log(answer);
}
