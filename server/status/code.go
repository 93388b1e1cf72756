package status

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// Code is the number of a kind of error. The thousands say the area: 1
// configuration and manifests, 2 identity and authorisation, 3 health and
// contracts, 4 views, xDS and clients, 5 DNS, 6 store, 7 the client's side.
type Code uint16

// The codes. Their rows are in Table.
const (
	InvalidField     Code = 1001
	InvalidManifest  Code = 1002
	PortTaken        Code = 1003
	InvalidConfig    Code = 1004
	AlreadyExists    Code = 1005
	RevisionConflict Code = 1006
	WrongSource      Code = 1007
	RemovalHeld      Code = 1008
	StillReferenced  Code = 1009
	InvalidPageToken Code = 1010
	InvalidRequest   Code = 1011

	// The problems of manifests, as registry/manifest numbers them.
	ManifestTooLarge      Code = 1201
	ManifestBadText       Code = 1202
	ManifestUnknownKey    Code = 1203
	ManifestRepeatedKey   Code = 1204
	ManifestBadSyntax     Code = 1205
	ManifestWrongType     Code = 1206
	ManifestBadValue      Code = 1207
	ManifestMissingKey    Code = 1208
	ManifestUnknownKind   Code = 1209
	ManifestNotSupported  Code = 1210
	ManifestRefusedKey    Code = 1211
	ManifestRefusedYAML   Code = 1212
	ManifestRepeatedThing Code = 1213
	ManifestMoreProblems  Code = 1214

	NoIdentity         Code = 2001
	ClassDenied        Code = 2002
	NotFound           Code = 2003
	IdentityExpired    Code = 2004
	AddressUnproved    Code = 2005
	NotOneself         Code = 2006
	UnsafeListener     Code = 2007
	IdentityUnreadable Code = 2008

	InvalidContract Code = 3001
	NotAttributable Code = 3002
	GuardRefused    Code = 3003
	LeaseGone       Code = 3004
	NothingHeld     Code = 3005

	ViewsLoading     Code = 4001
	ResumeTooOld     Code = 4002
	LimitExceeded    Code = 4003
	StreamStalled    Code = 4004
	InvalidDiscovery Code = 4005
	Stopping         Code = 4006
	NotRenderable    Code = 4007
	NotOffered       Code = 4008
	Internal         Code = 4009

	ZoneMissing Code = 5001
	ZoneInvalid Code = 5002

	StoreFull        Code = 6001
	StoreUnavailable Code = 6002
	RowUnreadable    Code = 6003
	StoreUnopenable  Code = 6004

	ServerUnreachable  Code = 7001
	ClientConfigAbsent Code = 7002
	WaitExpired        Code = 7003
)

// String is the written form, SL2003.
func (c Code) String() string { return fmt.Sprintf("SL%04d", uint16(c)) }

// ParseCode reads the written form, in either case.
func ParseCode(s string) (Code, error) {
	digits, ok := strings.CutPrefix(strings.ToUpper(s), "SL")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || len(digits) != 4 {
		return 0, fmt.Errorf("%q is not an error code: SL and four digits", s)
	}
	return Code(n), nil
}

// Entry is the row of one code.
type Entry struct {
	Code   Code
	Reason string     // ErrorInfo.reason: UPPER_SNAKE, at most 63 characters
	GRPC   codes.Code // OK: never sent over gRPC (a start, the command line, an alarm)
	Title  string
	Cause  string
	Fix    string // what to do; ends every message made with the code
	Since  string // the release that introduced it
	// Retired is the release that stopped using the code; empty while in use.
	Retired string
}

// Lookup returns the code's row; ok is false for a code that has none.
func Lookup(c Code) (Entry, bool) {
	for _, e := range Table() {
		if e.Code == c {
			return e, true
		}
	}
	return Entry{}, false
}
