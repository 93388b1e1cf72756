// Package limits names every limit that the server enforces, in one struct.
//
// Default is what ships; tests and flags change single fields before anything
// is built. Packages take the two or three values that they need in their own
// Config, and name a limit in a refusal by the field's name here. The package
// imports nothing of ours and holds no state.
//
// A comment that ends in * marks a limit that is settled and that no package
// enforces yet.
package limits

import "time"

// Limits is every limit of the server (RELIABILITY.md §5, DESIGN.md §1).
// Values are counts, bytes or durations as the field says.
type Limits struct {
	Transport    Transport
	XDS          XDS
	API          API
	Reports      Reports
	DNS          DNS
	Registry     Registry
	Store        Store
	Availability Availability
}

// Transport bounds what happens before and beside RPCs, on both gRPC ports.
type Transport struct {
	HandshakeTimeout     time.Duration // from accept to a verified peer
	Handshakes           int           // in flight at once, per port
	Connections          int           // open at once, per port
	ConnectionsPerSource int           // per (identity, source address)
	ConnectionsPerCaller int           // per identity, over all its addresses
	MaxHeaderBytes       uint32        // of a request's header list
	KeepaliveTime        time.Duration // idle time before the server pings
	KeepaliveTimeout     time.Duration // wait for the ping's answer
	MinClientPing        time.Duration // a client that pings more often is disconnected
	MaxConnectionAge     time.Duration // grpc-go spreads it by ±10 %; also at most half an SVID's life
	MaxConnectionGrace   time.Duration // for streams that are open when the age is reached
}

// XDS bounds the xDS and LRS port.
type XDS struct {
	ConcurrentStreams   uint32        // per connection
	MaxRequestBytes     int           // of one request: a resuming wildcard names every version it holds
	DecodeBudget        int64         // bytes of requests above DecodeFree being decoded at once, whole process *
	DecodeFree          int           // bytes of a request that the budget does not count *
	Names               int           // subscribed names of a type on one stream; initial versions not counted
	AgentNames          int           // the same for an agent
	AssignmentBytes     int           // of one assignment in any rendering; a service over it is refused by name
	ResponseBytes       int           // of one response; above it the response is split
	RequestRate         float64       // requests a second on one stream, plain acknowledgements not counted
	RequestBurst        int           // requests that may come at once
	StreamsPerSource    int           // open ADS streams per (identity, source address)
	StreamsPerCaller    int           // open ADS streams per identity, at least; see StreamShare
	StreamShare         float64       // or this share of the capacity, whichever is more *
	LRSStreamsPerCaller int           // open LRS streams per identity, counted apart
	LoadReportBytes     int           // of one load report on an LRS stream
	Unacked             int           // unacknowledged responses of a type before changes merge
	SendWindow          int           // unacknowledged bytes that a shared sender may leave on a stream
	StallAfter          time.Duration // without progress, plus the response's size over StallRate
	StallRate           int           // bytes a second that the slowest tolerated reader takes
}

// API bounds the API port.
type API struct {
	ConcurrentStreams   uint32 // per connection
	MaxRequestBytes     int    // of one message, reports apart
	WatchesPerSource    int    // open Watch streams per (identity, source address)
	WatchFilter         int    // services named in one Watch filter
	PageSize            int    // objects of a list page, at most
	DefaultPageSize     int    // objects of a list page that asks for none
	ApplyObjects        int    // objects in one Apply
	UnknownNamesPerCall int    // names answered NOT_FOUND to one identity per minute before it is limited
	Taps                int    // open taps of evidence
	TapsPerCaller       int    // of those, of one identity
	Trials              int    // contract tests that run at once
}

// Reports bounds the ingestion of evidence.
type Reports struct {
	MaxMessageBytes int     // of one message on a report stream
	Instances       int     // uids bound on one stream of self-reports
	Dependencies    int     // names of dependencies bound on one stream of self-reports
	Callees         int     // uids bound on one stream of outcomes, and reporters on it
	Targets         int     // uids bound on one stream of probe results
	Streams         int     // open report streams per (identity, source address)
	Rate            float64 // messages a second on one stream
	Burst           int     // messages that may come at once
	Inbox           int     // samples waiting in one shard before further ones are dropped

	ProberSilence   time.Duration // a prober that is not heard of leaves its targets to others
	ProberGrace     time.Duration // after a start: how long probers of a second zone are waited for
	AssignmentEvery time.Duration // changes of an assignment are gathered this long
	AssignmentPart  int           // targets in one message
	DialBacks       int           // unproved addresses of one identity that are dialled at once
}

// DNS bounds the DNS listeners (DNS.md §4).
type DNS struct {
	PayloadBytes       int           // EDNS payload over UDP
	Records            int           // of one RRset, by default
	MaxRecords         int           // of one RRset, at most
	TTL                time.Duration // of positive answers
	NegativeTTL        time.Duration // of NXDOMAIN and NODATA
	InFlight           int           // UDP questions being answered off the socket's loop *
	Connections        int           // TCP connections, and at most a quarter of the descriptors
	ConnectionsPerAddr int           // TCP connections of one address
	QueriesPerConn     int           // questions on one TCP connection
	ReadTimeout        time.Duration // for one question over TCP
	WriteTimeout       time.Duration // for one answer over TCP
	IdleTimeout        time.Duration // between questions over TCP
	Rate               int           // answers a second to one prefix and response class *
	PrefixFactor       int           // times Rate to one prefix in total *
	Slip               int           // every n-th limited answer is a truncated one *
	RateIPv4, RateIPv6 int           // prefix length that is counted together, in bits *
	ApexBytes          int           // of a zone's name, so that every accepted name fits 253
	TCPUserTimeout     time.Duration // of an accepted connection: the peer's network acknowledges within it *
}

// Registry bounds writing desired state. What a row may hold (endpoints of a
// service, ports, metadata, lease terms) are rules of registry, checked there.
type Registry struct {
	WriteTimeout time.Duration // a caller waits for the disk at most this long
}

// Store bounds what is kept on disk (STORE.md §2).
type Store struct {
	ChangeRing       int           // changes that a Watch or a stream can resume over
	ViewRetention    time.Duration // of published views
	ViewBytes        int64         // of published views
	QueuedRecords    int           // records that wait to be written behind
	CheckpointEvery  time.Duration // of the evaluator
	ReopenPollPeriod time.Duration // how often a frozen store looks for free space
}

// Availability bounds waiting and answering while starting and stopping.
type Availability struct {
	StopTimeout     time.Duration // for a graceful stop; what is open then is cut
	StopJitter      time.Duration // connections are told to go spread over this time
	HTTPReadTimeout time.Duration // of a request on the HTTP port
	HTTPWrite       time.Duration // of an answer on the HTTP port
	HTTPHeaderBytes int           // of a request on the HTTP port
	SVIDPoll        time.Duration // how often SVID files are looked at
	ResumeShare     float64       // of the population answered per ResumeWindow after a start *
	ResumeFloor     int           // clients answered per ResumeWindow at least *
	ResumeWindow    time.Duration // over which those are counted *
}

// Default returns the limits that ship. Each call returns a fresh value.
func Default() Limits {
	return Limits{
		Transport: transport(),
		XDS:       xds(),
		API: API{
			ConcurrentStreams: 100, MaxRequestBytes: 256 << 10, WatchesPerSource: 256, WatchFilter: 5000,
			PageSize: 1000, DefaultPageSize: 100, ApplyObjects: 1000, UnknownNamesPerCall: 6000,
			Taps: 32, TapsPerCaller: 8, Trials: 2,
		},
		Reports: Reports{
			MaxMessageBytes: 64 << 10, Instances: 1000, Dependencies: 256, Callees: 20000, Targets: 200000,
			Streams: 256, Rate: 20, Burst: 100, Inbox: 65536,
			ProberSilence: 10 * time.Second, ProberGrace: 10 * time.Second,
			AssignmentEvery: 500 * time.Millisecond, AssignmentPart: 1000, DialBacks: 8,
		},
		DNS:          dns(),
		Registry:     Registry{WriteTimeout: time.Second},
		Store:        store(),
		Availability: availability(),
	}
}

func transport() Transport {
	return Transport{
		HandshakeTimeout: 5 * time.Second, Handshakes: 256, Connections: 65536,
		ConnectionsPerSource: 256, ConnectionsPerCaller: 4096,
		MaxHeaderBytes: 16 << 10,
		KeepaliveTime:  30 * time.Second, KeepaliveTimeout: 10 * time.Second, MinClientPing: time.Second,
		MaxConnectionAge: 30 * time.Minute, MaxConnectionGrace: time.Minute,
	}
}

func xds() XDS {
	return XDS{
		ConcurrentStreams: 16, MaxRequestBytes: 64 << 20, DecodeBudget: 1 << 30, DecodeFree: 4 << 20,
		Names: 5000, AgentNames: 100000, AssignmentBytes: 3 << 20, ResponseBytes: 3 << 20,
		RequestRate: 20, RequestBurst: 100,
		StreamsPerSource: 256, StreamsPerCaller: 2000, StreamShare: 0.10, LRSStreamsPerCaller: 2000, LoadReportBytes: 4 << 20,
		Unacked: 8, SendWindow: 60 << 10, StallAfter: 30 * time.Second, StallRate: 16 << 10,
	}
}

func dns() DNS {
	return DNS{
		PayloadBytes: 1232, Records: 64, MaxRecords: 100, TTL: 5 * time.Second, NegativeTTL: 5 * time.Second,
		InFlight: 64, Connections: 1024, ConnectionsPerAddr: 16, QueriesPerConn: 128,
		ReadTimeout: 2 * time.Second, WriteTimeout: 500 * time.Millisecond, IdleTimeout: 10 * time.Second,
		Rate: 200, PrefixFactor: 20, Slip: 2, RateIPv4: 24, RateIPv6: 56, ApexBytes: 48,
		TCPUserTimeout: time.Second,
	}
}

func store() Store {
	return Store{
		ChangeRing: 16384, ViewRetention: 24 * time.Hour, ViewBytes: 1 << 30,
		QueuedRecords: 4096, CheckpointEvery: 10 * time.Second,
		ReopenPollPeriod: 2 * time.Second,
	}
}

func availability() Availability {
	return Availability{
		StopTimeout: 20 * time.Second, StopJitter: 5 * time.Second,
		HTTPReadTimeout: 5 * time.Second, HTTPWrite: 30 * time.Second, HTTPHeaderBytes: 16 << 10,
		SVIDPoll:    5 * time.Second,
		ResumeShare: 0.05, ResumeFloor: 50, ResumeWindow: 10 * time.Second,
	}
}
