// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
)

// These are the values of --group-by.
const (
	GroupSpan      = "span"
	GroupEndpoint  = "endpoint"
	GroupTrace     = "trace"
	GroupService   = "service"
	GroupFunction  = "function"
	GroupAttribute = "attribute"
)

// Group is a kind of table. The zero value means the usual tables.
type Group struct {
	// Kind is one of the constants above.
	Kind string
	// Key is the key of the attribute to group by, or "" for all attributes. Other kinds have "".
	Key string
}

// ParseGroup returns the group for a value of --group-by.
func ParseGroup(text string) (Group, error) {
	kind, key, keyed := strings.Cut(text, "=")
	if _, ok := cpuTables[kind]; !ok || keyed && (kind != GroupAttribute || key == "") {
		return Group{}, fmt.Errorf("invalid --group-by %q: use span, endpoint, trace, service, function, attribute or attribute=KEY", text)
	}
	return Group{kind, key}, nil
}

// String returns the value of --group-by.
func (g Group) String() string {
	if g.Key == "" {
		return g.Kind
	}
	return g.Kind + "=" + g.Key
}

// has reports whether the group has an attribute with this key.
func (g Group) has(key string) bool { return g.Key == "" || g.Key == key }
