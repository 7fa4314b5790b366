// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profilersocket is the datagram socket on which a profiler tells a process
// what it has found out about it.
//
// The kernel keeps few datagrams for a socket that is not read at once
// (net.unix.max_dgram_qlen, 10 by default). A profiler sends some fifty at a time and
// does not wait. What does not fit is lost at the sender, which alone knows. So the
// socket is read on a thread of its own, which stays in the kernel until a burst is
// over. It does not come back to Go for each message, where it would wait for a
// processor. [Socket.Drain] has it come back at once.
//
// It does not know what the messages say.
package profilersocket
