// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profilersocket implements the datagram socket on which a process receives messages
// from a profiler.
//
// The kernel queues only a few datagrams for a socket (net.unix.max_dgram_qlen, 10 by default). A
// profiler sends about fifty messages at a time and does not wait. If the queue is full, messages
// are lost, and only the sender knows. Therefore a dedicated thread receives the messages, and
// stays in the kernel until a burst has ended. If it returned to Go for each message, it would have
// to wait for a P each time. [Socket.Drain] makes it return at once.
//
// The package does not interpret the messages.
package profilersocket
