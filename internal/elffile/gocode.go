// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import "encoding/binary"

// GoCode is the machine code of a Go function, with what the runtime's table says about it.
type GoCode struct {
	// Name is the name of the function as it is in the table.
	Name string
	// Entry is the address of Code.
	Entry uint64
	Code  []byte
	// Inlined are consecutive ranges of Code with the calls that are inlined there.
	Inlined []GoInlined
	// OpenDefers says that the function keeps its deferred calls in its frame. DeferBits is the distance from the saved
	// frame pointer down to a byte in which each bit stands for a pending call, and DeferSlots the distance down to an
	// array with a pointer to each call's closure.
	OpenDefers            bool
	DeferBits, DeferSlots uint64
}

// GoInlined is a range of a function's code.
type GoInlined struct {
	// Limit is the address at which the range ends, and the next one begins.
	Limit uint64
	// Names are the functions inlined there, the innermost first.
	Names []string
}

// maxInlinedRanges is the maximum number of ranges with inlined calls of a function.
const maxInlinedRanges = 1 << 14

// maxInlinedNames is the maximum number of names in the different chains of inlined calls of a function.
const maxInlinedNames = 1 << 12

// Code returns the function that contains address. It fails if the function has more than 64 KiB of code, or if a part of
// its description cannot be read.
func (t *GoTable) Code(address uint64) (c GoCode, ok bool) {
	fn, ok := t.find(address)
	if !ok || fn.limit-fn.entry > maxFunctionSize || (fn.inlines || fn.openDefers) && t.inlineTrees.pieces == nil {
		return c, false
	}
	c = GoCode{Entry: fn.entry, Code: make([]byte, fn.limit-fn.entry), OpenDefers: fn.openDefers}
	if c.Name, ok = t.names.Text(uint64(fn.name)); !ok || !t.code.Read(fn.entry-t.text, c.Code) {
		return c, false
	}
	if fn.openDefers {
		var b [2 * binary.MaxVarintLen32]byte
		if !t.inlineTrees.Read(fn.defers, b[:]) {
			return c, false
		}
		bits, n := binary.Uvarint(b[:])
		slots, m := binary.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 || bits >= 1<<32 || slots >= 1<<32 {
			return c, false
		}
		c.DeferBits, c.DeferSlots = bits, slots
	}
	return c, !fn.inlines || t.addInlined(&c, fn)
}

// addInlined sets c.Inlined.
func (t *GoTable) addInlined(c *GoCode, fn goFunction) bool {
	chains := map[int32][]string{-1: nil} // by index in the inline tree
	kept := 0                             // names in all chains
	var chain func(index int32, depth int) ([]string, bool)
	chain = func(index int32, depth int) ([]string, bool) {
		if names, known := chains[index]; known {
			return names, true
		}
		call, ok := inlinedCall(fn, t.inlineTrees, index)
		name, named := t.names.Text(uint64(call.name))
		if !ok || !named || depth > maxGoInlineDepth || uint64(call.parent) >= fn.limit-fn.entry {
			return nil, false
		}
		outer, ok := chain(t.value(fn.inlineIndex, fn.entry, fn.entry+uint64(call.parent)), depth+1)
		if !ok || len(outer) > maxGoInlineDepth {
			return nil, false
		}
		names := append([]string{name}, outer...)
		if kept += len(names); kept > maxInlinedNames {
			return nil, false
		}
		chains[index] = names
		return names, true
	}
	for v := range t.values(fn.inlineIndex, fn.entry) {
		names, ok := chain(max(v.value, -1), 0)
		if !ok || len(c.Inlined) == maxInlinedRanges {
			return false
		}
		c.Inlined = append(c.Inlined, GoInlined{v.limit, names})
		if v.limit >= fn.limit {
			break
		}
	}
	return true
}
