package harness

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports are taken below the range from which systems hand out ephemeral ones,
// so that an outgoing connection cannot take a port between the look and the use.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreeBlock returns a base such that base+offset is free over TCP and UDP on
// loopback for every offset. With none it looks at offset 0 alone.
func FreeBlock(t testing.TB, offsets ...int) int {
	t.Helper()
	if len(offsets) == 0 {
		offsets = []int{0}
	}
	for range 200 {
		base := firstPort + 100*rand.IntN((lastPort-firstPort)/100)
		if free(base, offsets) {
			return base
		}
	}
	t.Fatalf("no block of free ports between %d and %d", firstPort, lastPort)
	return 0
}

func free(base int, offsets []int) bool {
	for _, o := range offsets {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(base+o))
		l, err := net.Listen("tcp", at)
		if err != nil {
			return false
		}
		l.Close()
		p, err := net.ListenPacket("udp", at)
		if err != nil {
			return false
		}
		p.Close()
	}
	return true
}
