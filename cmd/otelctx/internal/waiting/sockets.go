// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/internal/procfs"
)

// Socket is a TCP socket of a process.
type Socket struct {
	// Peer is the other end. It is invalid for a socket that listens at Local.
	Local, Peer netip.AddrPort
}

// maxNetTable bounds the bytes that are read of a table of sockets. A line has 150.
const maxNetTable = 256 << 20

// sockets returns the TCP sockets among the file descriptors of a process. It takes them from the process's own tables,
// since the process may be in another network namespace.
func sockets(pid int, descriptors map[int]bool) map[int]Socket {
	dir := procfs.Host().Path(pid, "")
	inodes := map[string][]int{}
	for fd := range descriptors {
		link, err := os.Readlink(filepath.Join(dir, "fd", strconv.Itoa(fd)))
		if inode, ok := strings.CutPrefix(link, "socket:["); ok && err == nil {
			inode = strings.TrimSuffix(inode, "]")
			inodes[inode] = append(inodes[inode], fd)
		}
	}
	found := map[int]Socket{}
	for _, table := range [...]string{"tcp", "tcp6"} {
		if len(inodes) == 0 {
			break
		}
		f, err := os.Open(filepath.Join(dir, "net", table)) //nolint:gosec // G304: in /proc
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(io.LimitReader(f, maxNetTable)); lines.Scan(); {
			socket, inode, ok := parseSocket(lines.Text())
			if ok {
				for _, fd := range inodes[inode] {
					found[fd] = socket
				}
			}
		}
		_ = f.Close()
	}
	return found
}

// parseSocket parses a line of /proc/net/tcp or tcp6.
func parseSocket(line string) (s Socket, inode string, ok bool) {
	const (
		local, remote, state, inodeField = 1, 2, 3, 9
		listening                        = "0A"
	)
	fields := strings.Fields(line)
	if len(fields) <= inodeField {
		return s, "", false
	}
	var ok1, ok2 bool
	s.Local, ok1 = parseAddress(fields[local])
	s.Peer, ok2 = parseAddress(fields[remote])
	if fields[state] == listening {
		s.Peer = netip.AddrPort{}
	}
	return s, fields[inodeField], ok1 && ok2
}

// parseAddress parses an address such as 0100007F:1F90. Each group of eight digits is a number in the byte order of the
// machine.
func parseAddress(s string) (netip.AddrPort, bool) {
	digits, portDigits, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(digits)
	port, portErr := strconv.ParseUint(portDigits, 16, 16)
	if err != nil || portErr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	address, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(address.Unmap(), uint16(port)), ok
}

// String returns the peer, or the address at which the socket listens.
func (s *Socket) String() string {
	if !s.Peer.IsValid() {
		return fmt.Sprintf("listener %v", s.Local)
	}
	return s.Peer.String()
}
