"use strict";
/* Runs the script that an element holds in packed form: gzip in base 85, with "," for "<". */
async function runPacked(element) {
  const characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const digits = new Uint8Array(128);
  [...characters].forEach((character, digit) => (digits[character.charCodeAt(0)] = digit));
  const text = element.textContent;
  const words = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let word = 0, at = 0; at < text.length; word += 4) {
    let value = 0;
    for (const end = at + 5; at < end; at++) value = value * 85 + digits[text.charCodeAt(at)];
    words.setUint32(word, value);
  }
  const zipped = new Blob([new Uint8Array(words.buffer, 0, Number(element.dataset.bytes))]);
  const script = document.createElement("script");
  script.textContent = await new Response(zipped.stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}
