// Loaded before configurable-http-proxy. To a Unix socket, it opens a connection for each request and asks for its end.
// Node writes once more after the body, an empty chunk. A server that has answered by then has closed its side, so that
// write fails, and the browser gets a 503 for a request that succeeded. An open connection has no such race; to ports,
// the proxy keeps connections open itself.
// It takes X-Real-IP away, too: the hub would believe it, and write down an address that a browser has invented. Of
// X-Forwarded-For, the hub reads the last address, which is the proxy's.
"use strict";

const http = require("node:http");

const agent = new http.Agent({ keepAlive: true });
const request = http.request;

http.request = (options, ...rest) => {
  if (options.headers) delete options.headers["x-real-ip"];
  if (options.socketPath && options.agent === false && options.headers.connection === "close") {
    options = { ...options, agent, headers: { ...options.headers, connection: "keep-alive" } };
  }
  return request(options, ...rest);
};
