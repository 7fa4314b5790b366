// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	// interval is the time between two reads of the header. An update takes only microseconds, so most
	// reads see the header before or after an update, not during it.
	interval = 200 * time.Microsecond
	// scanInterval is the time between two scans of the mappings, children and threads.
	scanInterval = time.Second
	// stuckAfter is how long an update may take before the publisher counts as stuck. Even a publisher that
	// loses the CPU during an update needs far less.
	stuckAfter = 2 * time.Second
	// namingLimit is how long to wait for the call of prctl after the last update.
	namingLimit = 5 * time.Second
	maxChildren = 1024     // maximum number of children examined
	maxPayload  = 1 << 20  // bytes that are read and decoded; the limits of readers are far lower
	maxSmaps    = 64 << 20 // bytes
)

// contextChecker checks the process context of one process.
type contextChecker struct {
	report
	pid     int
	memory  remotemem.Memory
	process *procfs.Process

	mapping procfs.Mapping // the mapping with the header, or the zero value if it is unknown
	lost    bool           // whether the header can no longer be read where it was; false after the next scan
	found   bool           // whether a header was ever found
	zero    time.Time      // when the timestamp was first seen to be zero; unset if it is not zero
	unnamed string         // the name of the mapping if the last scan found it without the name OTEL_CTX, or ""
	last    *observedPublication
	updates int
	keyMap  []string // the last threadlocal.attribute_key_map; nil if none was published
	naming  *namingCounter
}

// observedPublication is a publication that was read, kept to compare it with the next one.
type observedPublication struct {
	header  wire.ProcessContextHeader
	address uint64 // of the header
	digest  [sha256.Size]byte
}

// step reads the header, the payload and the header again, and checks what it has read.
func (c *contextChecker) step() {
	if c.mapping.Name == "" {
		return
	}
	var before, after [wire.ProcessContextHeaderSize]byte
	if _, err := c.memory.ReadAt(before[:], int64(c.mapping.Start)); err != nil {
		// The context was withdrawn or moved. The next scan, which follows at once, finds a moved context.
		c.mapping, c.lost = procfs.Mapping{}, true
		return
	}
	h := decode(before)
	if h.PublishedAtNS == 0 {
		if c.zero.IsZero() {
			c.zero = time.Now()
		}
		if took := time.Since(c.zero); took > stuckAfter {
			c.check("4719-H3", false, "the timestamp has been zero for %v; header % x", took.Round(time.Second), before)
			c.zero = time.Now()
		}
		return
	}
	c.zero = time.Time{}
	body, bodyErr := c.payload(h)
	if _, err := c.memory.ReadAt(after[:], int64(c.mapping.Start)); err != nil || before != after {
		if err == nil && decode(after).PublishedAtNS == h.PublishedAtNS {
			c.check("4719-U2", false, "with timestamp %d the header was % x and then % x", h.PublishedAtNS, before, after)
		}
		return
	}
	c.published(h, before, body, bodyErr)
}

// published checks a publication whose header stayed the same while the payload was read. raw is the
// encoded header, and bodyErr is the error of reading the payload.
func (c *contextChecker) published(h wire.ProcessContextHeader, raw [wire.ProcessContextHeaderSize]byte, body []byte, bodyErr error) {
	current := &observedPublication{h, c.mapping.Start, sha256.Sum256(body)}
	last := c.last
	if last != nil {
		sameAddress := last.address == current.address
		if !sameAddress || last.header.PublishedAtNS != h.PublishedAtNS {
			c.check("4719-U1", sameAddress, "the header was at %#x and is at %#x", last.address, current.address)
		}
		last.address = current.address
	}
	if last != nil && last.header.PublishedAtNS == h.PublishedAtNS {
		// With the same timestamp this must be the same publication.
		if last.header != h || bodyErr == nil && last.digest != current.digest {
			c.check("4719-U2", false, "timestamp %d: header % x, then % x; payload %s, then %s", h.PublishedAtNS,
				encode(last.header), raw, hex.EncodeToString(last.digest[:8]), hex.EncodeToString(current.digest[:8]))
		}
		return
	}
	signed := string(h.Signature[:]) == wire.ProcessContextSignature
	c.check("4719-H1", signed, "signature %q", h.Signature[:])
	c.check("4719-H2", h.Version == wire.ProcessContextVersion || h.Version == 1, "version %d", h.Version)
	c.check("4719-H3", true, "")
	c.check("4719-H6", h.PayloadSize <= wire.MaxProcessContextPayload, "payload of %d bytes", h.PayloadSize)
	c.check("4719-H5", bodyErr == nil, "%d bytes at %#x: %v", h.PayloadSize, h.Payload, bodyErr)
	c.check("4719-P9", signed && h.Version != 0 && h.Payload != 0 && h.PayloadSize != 0,
		"timestamp %d with version %d, payload_size %d, header % x", h.PublishedAtNS, h.Version, h.PayloadSize, raw)
	c.checkClock(h.PublishedAtNS)
	if last != nil {
		c.updates++
		c.check("4719-U2", true, "")
		c.check("4719-U6", h.PublishedAtNS > last.header.PublishedAtNS, "timestamp %d after %d", h.PublishedAtNS, last.header.PublishedAtNS)
	}
	c.last = current
	switch {
	case bodyErr != nil:
		c.skipMessage("the payload cannot be read")
	case h.PayloadSize == 0:
		c.skipMessage("the payload is empty")
	case h.PayloadSize > maxPayload:
		c.skipMessage("a payload of more than 1 MiB is not decoded")
	default:
		c.checkMessage(body)
	}
}

// checkClock checks that a timestamp is a plausible time since boot: it must not be in the future.
func (c *contextChecker) checkClock(timestamp uint64) {
	now, err := boottime.Now()
	ahead, aheadErr := boottime.Ahead(procfs.Host().Path(c.pid, ""))
	if err = errors.Join(err, aheadErr); err != nil {
		c.skip("4719-H4", "%v", err)
		return
	}
	now += uint64(ahead)
	// Each update must advance the timestamp, by at least a nanosecond. The timestamps of a publisher that
	// updates very often may therefore run ahead of the clock.
	const slack = uint64(time.Second)
	c.check("4719-H4", timestamp <= now+slack, "timestamp %d, while CLOCK_BOOTTIME of the process is %d", timestamp, now)
}

// payload reads the payload. If it has more than maxPayload bytes, payload reads only its first and its last
// byte, and returns nil.
func (c *contextChecker) payload(h wire.ProcessContextHeader) ([]byte, error) {
	if h.PayloadSize <= maxPayload {
		body := make([]byte, h.PayloadSize)
		_, err := c.memory.ReadAt(body, int64(h.Payload))
		return body, err
	}
	for _, offset := range []uint64{0, uint64(h.PayloadSize) - 1} {
		var b [1]byte
		if _, err := c.memory.ReadAt(b[:], int64(h.Payload+offset)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// scan finds the process context, and checks its mapping, the process's descriptors and its children.
func (c *contextChecker) scan(ctx context.Context) error {
	c.lost = false
	valid, err := c.contexts(ctx)
	if err != nil || len(valid) == 0 {
		return err
	}
	c.found = true
	c.check("4719-P11", len(valid) == 1, "%d process contexts, at %#x and %#x", len(valid), valid[0].Start, valid[len(valid)-1].Start)
	m := valid[0]
	c.mapping = m
	p := m.Perms
	c.check("4719-P3", p.Read && p.Write && !p.Exec && !p.Shared, "permissions %s of %q", p, m.Name)
	c.checkName(m)
	c.checkForkFlag(m)
	c.checkDescriptors(ctx, m)
	c.checkChildren(ctx, m)
	return nil
}

// contexts returns the mappings with a process context, even one that is being changed.
func (c *contextChecker) contexts(ctx context.Context) ([]procfs.Mapping, error) {
	const enough = 16
	var valid []procfs.Mapping
	for m, err := range c.process.Maps(wire.IsProcessContextMapping) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if c.hasHeader(m) {
			valid = append(valid, m)
		}
		if len(valid) == enough {
			break
		}
	}
	if len(valid) > 1 {
		// The publisher may have replaced one by another while the mappings were listed.
		valid = slices.DeleteFunc(valid, func(m procfs.Mapping) bool { return !c.hasHeader(m) })
	}
	return valid, nil
}

// hasHeader reports whether m begins with the header of a process context.
func (c *contextChecker) hasHeader(m procfs.Mapping) bool {
	var raw [wire.ProcessContextHeaderSize]byte
	if _, err := c.memory.ReadAt(raw[:], int64(m.Start)); err != nil {
		return false
	}
	h := decode(raw)
	return string(h.Signature[:]) == wire.ProcessContextSignature || h.PublishedAtNS != 0
}

// checkName checks the name of the mapping m. The publisher names the mapping after it has published, so only
// finish says that a name is missing.
func (c *contextChecker) checkName(m procfs.Mapping) {
	if !kernelNamesMappings() {
		c.skip("4719-P10", "this kernel does not name mappings (CONFIG_ANON_VMA_NAME)")
		return
	}
	c.unnamed = m.Name
	if strings.HasPrefix(m.Name, "[anon") {
		c.unnamed = ""
		c.check("4719-P10", true, "")
	}
}

// checkForkFlag checks that the mapping m is not copied on fork.
func (c *contextChecker) checkForkFlag(m procfs.Mapping) {
	flags, err := flagsOf(c.pid, m)
	if err != nil {
		c.skip("4719-P5", "%v", err)
		return
	}
	c.check("4719-P5", slices.Contains(flags, dontFork), "the mapping's flags are %s, without %s", strings.Join(flags, " "), dontFork)
}

// dontFork is the flag of mappings that fork does not copy.
const dontFork = "dc"

// flagsOf returns the flags of a mapping of a process from its smaps file.
func flagsOf(pid int, m procfs.Mapping) ([]string, error) {
	f, err := os.Open(procfs.Host().Path(pid, "smaps"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	found := false
	lines := bufio.NewScanner(io.LimitReader(f, maxSmaps))
	for lines.Scan() {
		found = found || strings.HasPrefix(lines.Text(), fmt.Sprintf("%08x-%08x ", m.Start, m.End))
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && found {
			return strings.Fields(flags), nil
		}
	}
	return nil, errors.New("the kernel does not report the flags of the mapping")
}

// checkDescriptors checks the descriptors that refer to memfds of process contexts. m is the mapping of the context.
func (c *contextChecker) checkDescriptors(ctx context.Context, m procfs.Mapping) {
	dir := procfs.Host().Path(c.pid, "")
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		c.skip("4719-P2", "%v", err)
		return
	}
	found, open := false, ""
	for _, e := range entries {
		if ctx.Err() != nil {
			return
		}
		target, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if err != nil || !strings.HasPrefix(target, "/memfd:OTEL_CTX") {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name())) //nolint:gosec // G304: in /proc
		if err != nil {
			continue
		}
		var flags, inode uint64
		for line := range strings.Lines(string(info)) {
			_, _ = fmt.Sscanf(line, "flags: %o", &flags)
			_, _ = fmt.Sscanf(line, "ino: %d", &inode)
		}
		if inode == 0 { // before Linux 5.14
			var info syscall.Stat_t
			if syscall.Stat(filepath.Join(dir, "fd", e.Name()), &info) == nil {
				inode = info.Ino
			}
		}
		if found = true; inode == m.Inode {
			open = e.Name()
		}
		const cloexec = 0o2000000
		c.check("4719-P2", flags&cloexec != 0, "descriptor %s is open, with flags %#o", e.Name(), flags)
	}
	if !found {
		c.skip("4719-P2", "the descriptor was closed")
	}
	c.check("4719-P3b", open == "", "descriptor %s of the memfd is still open", open)
}

// checkChildren checks that child processes have not inherited the mapping m.
func (c *contextChecker) checkChildren(ctx context.Context, m procfs.Mapping) {
	children, err := childrenOf(c.pid)
	if err != nil || len(children) == 0 {
		c.skip("4719-F1", "the process had no children")
		return
	}
	for _, pid := range children {
		child, err := procfs.Host().Process(pid)
		if err != nil {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		inherited := false
		for mapping, err := range child.Maps(wire.IsProcessContextMapping) {
			if err != nil {
				break
			}
			inherited = inherited || mapping.Start == m.Start && mapping.Inode == m.Inode && mapping.Minor == m.Minor
		}
		_ = child.Close()
		if inherited {
			// A child of vfork uses the memory of its parent, and a child may publish a context of its own at
			// the same address. In both cases the mapping has the flag that it cannot have if fork copied it.
			flags, err := flagsOf(pid, m)
			if err != nil {
				continue
			}
			inherited = !slices.Contains(flags, dontFork)
		}
		c.check("4719-F1", !inherited, "child %d has the mapping at %#x, too", pid, m.Start)
	}
}

func childrenOf(pid int) ([]int, error) {
	tasks, err := os.ReadDir(procfs.Host().Path(pid, "task"))
	if err != nil {
		return nil, err
	}
	var children []int
	for _, task := range tasks {
		text, err := os.ReadFile(procfs.Host().Path(pid, filepath.Join("task", task.Name(), "children")))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil && len(children) < maxChildren {
				children = append(children, child)
			}
		}
	}
	return children, nil
}

// finish checks the rules that can be judged only when the observation has ended.
func (c *contextChecker) finish() {
	if c.unnamed != "" {
		for m, err := range c.process.Maps(wire.IsProcessContextMapping) {
			if err == nil && m.Start == c.mapping.Start {
				c.check("4719-P10", strings.HasPrefix(m.Name, "[anon"), "the mapping is %q", m.Name)
			}
		}
	}
	if c.updates == 0 {
		for _, id := range []string{"4719-U1", "4719-U2", "4719-U6", "4719-U7"} {
			c.skip(id, "the context was not updated while it was watched")
		}
		return
	}
	// The publisher stores the timestamp before it names the mapping, so the call for the last update may
	// still follow.
	named, err := c.naming.count()
	for end := time.Now().Add(namingLimit); err == nil && named < c.updates && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		named, err = c.naming.count()
	}
	if err == nil && named < c.updates {
		err = checkCounting()
	}
	if err != nil {
		c.skip("4719-U7", "%v", err)
		return
	}
	c.check("4719-U7", named >= c.updates, "%d updates and %d calls of prctl(PR_SET_VMA)", c.updates, named)
}

func decode(raw [wire.ProcessContextHeaderSize]byte) wire.ProcessContextHeader {
	h, err := wire.DecodeProcessContextHeader(&raw)
	if err != nil {
		// Readers reject this header, but the checks still need its fields.
		h = *wire.ProcessContextHeaderIn(slices.Clone(raw[:]))
	}
	return h
}

func encode(h wire.ProcessContextHeader) []byte {
	out := make([]byte, wire.ProcessContextHeaderSize)
	*wire.ProcessContextHeaderIn(out) = h
	return out
}
