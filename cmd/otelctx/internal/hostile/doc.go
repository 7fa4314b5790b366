// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile tests otelctx against programs that attack the user who records them. The package contains
// only tests.
//
// The tests attack the current otelctx. To attack another build, set OTELCTX_TEST_COMMAND to its path. For
// comparison, this is what the attacks achieved against commit 5c28b4b, before the recorder was hardened:
//
//	test                  what otelctx did at commit 5c28b4b
//	TestSetuidExec        leaked 24 bytes of the privileged program as a trace id
//	TestKernelAddresses   disclosed kernel addresses to an ordinary user
//	TestExec              attributed the next program's memory and stacks to the previous service
//	TestReusedPID         attributed the new process's memory and stacks to the ended service
//	TestBeside
//	  invalid attributes  failed to write the profile: resource 3: key ""
//	  60,000 mappings     did not end when interrupted
//	  a million symbols   did not record the service within two minutes
//	  random frames       lost up to 10,182 of 16,901 samples, including the service's
//	  new attributes      recorded the service correctly
//	  stalling readers    did not record the service within two minutes
//	TestStalled           left the service out of the list
//	TestPlantedOutput     followed the planted link, and made files readable by everyone (0666)
//	TestFilesAreNotOpened opened the pipe
//	TestStalledFile       did not end when interrupted
//	TestCrowd             took no sample of the service (the test runs only in make test-all)
//	TestOutputs           used up to 2,025 MiB (measured at commit 2905e87)
//	TestForeignCapacity   found no span in a ring whose capacity is not a power of two
//
// TestGoroutines and TestManyGoroutines attack commands that did not exist at that commit. TestGoroutinesExec
// attacks package reader. TestDenied tests the library in the service and passes with any otelctx.
package hostile
