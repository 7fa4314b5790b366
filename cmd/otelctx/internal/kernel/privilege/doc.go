// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package privilege keeps capabilities that come with this program's file from being those
// of whoever runs it.
//
// A file with capabilities, setcap(8), hands them to every user. Recording needs CAP_BPF and
// CAP_PERFMON, and nothing else that the program does may depend on what the file has. Which
// processes and files the user may read is for the kernel to say. [Restrict] therefore
// clears what is effective in all threads, and [Do] raises what recording needs, in one
// thread, for as long as a function runs. Capabilities that the user has, as root does, are
// left alone.
//
// It does not know what the privileges are used for.
package privilege
