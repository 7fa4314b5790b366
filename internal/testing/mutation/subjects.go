// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

// subject is code, with what tests it.
type subject struct {
	name    string
	dirs    []string
	mutants int
	// tests are run in this order until one fails.
	tests []tests
}

// tests are packages of one module.
type tests struct {
	module   string
	race     bool // also in make test
	packages []string
}

const (
	tool         = "cmd/otelctx"
	pkgReader    = "./reader"
	pkgRecording = "./internal/recording"
	everything   = "./..."
)

// The path that every span takes, whoever shows it.
var spanPath = []tests{
	{".", false, []string{"./spanctx"}},
	{".", false, []string{"./ringbuf", pkgReader, "./universalprofiling", "./scopedattr"}},
	{tool, false, []string{"./internal/kernel/sampler", pkgRecording, "."}},
}

var subjects = []subject{
	{"publisher", []string{"resourcepublisher", "internal/vma"}, 24, []tests{
		{".", false, []string{"./resourcepublisher", "./internal/vma", "./internal/wire"}},
		{".", false, []string{pkgReader}},
		{"internal/interop", false, []string{everything}},
		{tool, false, []string{"."}},
	}},
	{"reader", []string{"reader", "internal/procfs", "internal/remotemem"}, 30, []tests{
		{".", false, []string{pkgReader, "./internal/procfs", "./internal/remotemem"}},
		{".", false, []string{"./resourcepublisher"}},
		{"internal/interop", false, []string{everything}},
		{tool, false, []string{everything}},
	}},
	{"recorder: sampling", []string{tool + "/internal/kernel/sampler", tool + "/internal/recording", "internal/patient"}, 30, []tests{
		{".", false, []string{"./internal/patient"}},
		{tool, false, []string{"./internal/kernel/sampler", pkgRecording}},
		{tool, false, []string{"."}},
		{"internal/interop", false, []string{everything}},
	}},
	{"recorder: profiles", []string{tool + "/internal/profile/symbols", tool + "/internal/profile", tool + "/internal/profile/export"}, 30, []tests{
		{tool, false, []string{"./internal/profile/symbols", "./internal/profile", "./internal/profile/export"}},
		{tool, false, []string{pkgRecording, "."}},
		{"internal/interop", false, []string{everything}},
	}},
	{"recorder: command", []string{tool}, 10, []tests{{tool, false, []string{"."}}}},
	{"span path: spans", []string{"spanctx"}, 30, spanPath},
	{"span path: slots", []string{"internal/ring", "ringbuf"}, 20, append([]tests{{".", false, []string{"./internal/ring", "./ringbuf"}}}, spanPath...)},
	{"span path: cells and records", []string{"internal/cells", "internal/gorecord", "internal/sdkspan", "internal/scope"}, 24, append(
		[]tests{{".", false, []string{"./internal/cells", "./internal/gorecord", "./internal/sdkspan", "./internal/scope"}}}, spanPath...)},
	{"span path: runtime", []string{"internal/goruntime"}, 12, append([]tests{{".", false, []string{"./internal/goruntime"}}}, spanPath...)},
}
