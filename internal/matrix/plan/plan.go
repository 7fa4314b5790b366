// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan is what the host and the guest of the matrix agree on. It says what the
// guest runs, and which lines on its console tell the host about it.
package plan

import "time"

// Path is where the guest finds its plan, as JSON.
const Path = "/plan.json"

// Plan is what a guest runs, one after another.
type Plan struct {
	Programs []Program `json:"programs"`
	// Environment is theirs beside what the guest adds.
	Environment []string `json:"environment"`
}

// Program is one program that a guest runs.
type Program struct {
	// Name is how the host knows it, without spaces.
	Name string `json:"name"`
	// Path is the executable's, and Dir the working directory.
	Path string   `json:"path"`
	Dir  string   `json:"dir"`
	Args []string `json:"args"`
	// Timeout is when it is killed.
	Timeout time.Duration `json:"timeout_ns"`
}

// The lines of the guest. What is between start and end the program has written, to
// its standard output or error. The kernel may write between any two lines.
const (
	// Start is followed by the program's name.
	Start = "@@matrix start "
	// End is followed by the program's name, its exit code, or -1 if a signal ended it,
	// and how many seconds it took.
	End = "@@matrix end "
	// Fact is followed by a name and a value.
	Fact = "@@matrix fact "
	// Done says that everything has been run.
	Done = "@@matrix done"
	// Failed is followed by why the guest gave up.
	Failed = "@@matrix failed "
)

// The facts that a guest tells about its kernel.
const (
	// Release is the release as uname tells it.
	Release = "release"
	// BTF is whether the kernel describes its types: true or false.
	BTF = "btf"
	// Up is how many seconds the kernel had been up when the guest began.
	Up = "up"
)
