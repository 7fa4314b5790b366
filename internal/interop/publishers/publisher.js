// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A publisher in Node.js of a process context (OTEP 4719), written from its text. OTEP 4947's thread-local variable is not meant for
// Node.js. The addon of native.c, whose path is the argument, maps the memory. Prints "ready", and then publishes again for each line of
// standard input.
'use strict';
const native = require(process.argv[2]);

function field(number, data) {
  const size = data.length;
  const head = size < 128 ? [number << 3 | 2, size] : [number << 3 | 2, (size & 127) | 128, size >> 7];
  return Buffer.concat([Buffer.from(head), data]);
}

const text = (s) => field(1, Buffer.from(s));
const keyValue = (outer, key, value) => field(outer, Buffer.concat([field(1, Buffer.from(key)), field(2, value)]));

function publish() {
  const payload = Buffer.concat([
    field(1, Buffer.concat([keyValue(1, 'service.name', text('node-publisher')), keyValue(1, 'process.runtime.name', text('nodejs'))])),
  ]);
  if (native.publish(payload) !== 0) throw new Error('not published');
}

publish();
console.log('ready');
require('readline').createInterface({ input: process.stdin }).on('line', () => {
  publish();
  console.log('done');
});
