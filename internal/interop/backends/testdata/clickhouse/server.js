// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Part of ClickHouse's HTTP interface on top of chDB, ClickHouse's engine as a library: enough for
// the Collector's exporter and for the tests' queries.
//
// usage: node server.js HOST PORT DIRECTORY
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { Session } = require('chdb');

const [host, port, directory] = process.argv.slice(2);
const session = new Session(path.join(directory, 'data'));

const text = (s) => Buffer.concat([Buffer.from([s.length]), Buffer.from(s)]); // below 128 bytes

// The first answer that a Go client reads is a block with the header and column flags of the newest
// protocol. Because it announces revision 0, the client then expects plain blocks, as chDB writes
// them.
const hello = Buffer.concat([
  Buffer.from([1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0]), // block info
  Buffer.from([4, 1]), // columns and rows
  ...[
    ['displayName()', 'String', text('chdb')],
    ['version()', 'String', text(session.query('SELECT version()', 'TSV').trim())],
    ['revision()', 'UInt32', Buffer.alloc(4)],
    ['timezone()', 'String', text('UTC')],
  ].flatMap(([name, type, value]) => [text(name), text(type), Buffer.from([0]), value]),
]);

let files = 0;

async function answer(url, body) {
  const statement = url.searchParams.get('query') ?? body.toString();
  const insert = /^\s*(INSERT INTO [^]*?)\s*FORMAT Native\s*$/i.exec(statement);
  if (insert) {
    const file = path.join(directory, `insert-${files++}.native`);
    fs.writeFileSync(file, body);
    try {
      await session.queryAsync(`${insert[1]} SELECT * FROM file('${file}', 'Native')`);
    } finally {
      fs.unlinkSync(file);
    }
    return Buffer.alloc(0);
  }
  if (/^SELECT displayName\(\), version\(\), revision\(\)/.test(statement)) return hello;
  const format = url.searchParams.get('default_format') ?? 'TabSeparated';
  return Buffer.from((await session.queryAsync(statement, { format })).bytes());
}

// Statements run one at a time.
let last = Promise.resolve();

http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const url = new URL(request.url, 'http://localhost');
    if (url.pathname === '/ping') return response.end('Ok.\n');
    last = last.then(() => answer(url, Buffer.concat(chunks))).then(
      (bytes) => response.end(bytes),
      (error) => response.writeHead(500).end(String(error)),
    );
  });
}).listen(Number(port), host);
