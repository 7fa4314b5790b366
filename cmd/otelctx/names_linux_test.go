// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/seccomp"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// roleFiltered publishes under a system call filter.
const roleFiltered = "filtered"

// The names that a kernel may show a context by, each as inspect and list see it.
func TestMappingNames(t *testing.T) {
	for want, test := range map[string]struct {
		rules []seccomp.Rule
		named bool
	}{
		"/memfd:OTEL_CTX (deleted)": {rules: []seccomp.Rule{seccomp.NoNaming}},
		"[anon_shmem:OTEL_CTX]":     {named: true},
		"[anon:OTEL_CTX]":           {rules: []seccomp.Rule{seccomp.NoMemfd}, named: true},
	} {
		t.Run(want, func(t *testing.T) {
			if test.named {
				needNaming(t)
			}
			rules, err := json.Marshal(test.rules)
			require.NoError(t, err)
			c := childproc.Start(t, roleFiltered, nil)
			require.Equal(t, "published", c.Ask("%s", rules))

			got := otelctx(t, "inspect", strconv.Itoa(c.PID()))
			require.Zero(t, got.code, got.stderr)
			assert.Contains(t, got.stdout, "Mapping     "+want+" at 0x")

			got = otelctx(t, "list", "--json")
			require.Zero(t, got.code, got.stderr)
			var listed []document
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &listed))
			names := map[int]string{}
			for _, d := range listed {
				names[d.PID] = d.Mapping
			}
			assert.Equal(t, want, names[c.PID()])

			got = otelctx(t, "list")
			require.Zero(t, got.code, got.stderr)
			assert.Contains(t, lineOf(got.stdout, c), "filtered")
		})
	}
}

// needNaming skips the test where the kernel does not name memory.
func needNaming(t *testing.T) {
	t.Helper()
	const name = "otelctx-probe"
	region, err := vma.New(name, 1)
	require.NoError(t, err)
	defer region.Close()
	_ = region.Announce() // The mapping tells.
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	if !strings.Contains(string(maps), "[anon_shmem:"+name+"]") {
		t.Skip("the kernel has no CONFIG_ANON_VMA_NAME: memory has no name but a memory file's")
	}
}

func filteredRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	order, _ := parent.Receive()
	var rules []seccomp.Rule
	parent.Must(json.Unmarshal([]byte(order), &rules))
	if len(rules) > 0 {
		parent.Must(seccomp.Deny(rules...))
	}
	_, err := resourcepublisher.NewPublisher(resource.NewSchemaless(attribute.String("service.name", "filtered")))
	parent.Must(err)
	parent.Send("published")
	parent.Receive()
}
