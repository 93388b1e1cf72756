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

// reserved is the last port of each hundred, held while a test owns ports of that
// hundred, so that tests of other processes take another one.
const reserved = 99

// FreeBlock returns a base such that base+offset is free over TCP and UDP on
// loopback for every offset. With none it looks at offset 0 alone. Every hundred
// that has an offset belongs to the test until its end; its last port is not to
// be used.
func FreeBlock(t testing.TB, offsets ...int) int {
	t.Helper()
	if len(offsets) == 0 {
		offsets = []int{0}
	}
	for range 200 {
		base := firstPort + 100*rand.IntN((lastPort-firstPort)/100)
		release, ok := reserve(base, offsets)
		if ok && free(base, offsets) {
			t.Cleanup(release)
			return base
		}
		release()
	}
	t.Fatalf("no block of free ports between %d and %d", firstPort, lastPort)
	return 0
}

// reserve holds the hundreds that the offsets are in.
func reserve(base int, offsets []int) (release func(), ok bool) {
	held := make(map[int]net.Listener)
	release = func() {
		for _, l := range held {
			l.Close()
		}
	}
	for _, o := range offsets {
		hundred := o / 100 * 100
		if held[hundred] != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+hundred+reserved)))
		if err != nil {
			return release, false
		}
		held[hundred] = l
	}
	return release, true
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
