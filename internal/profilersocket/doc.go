// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profilersocket implements the datagram socket on which a process receives messages
// from a profiler.
//
// The kernel queues only a few datagrams for a socket (net.unix.max_dgram_qlen, 10 by default). A
// profiler sends about fifty at a time and does not wait. Messages that do not fit are lost, and
// only the sender knows. So the socket is read on a dedicated thread, which stays in the kernel
// until a burst has ended. It does not return to Go for each message, because there it would have
// to wait for a P. [Socket.Drain] makes it return at once.
//
// The package does not interpret the messages.
package profilersocket
