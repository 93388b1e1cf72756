package xds

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxName is the longest resource name that is looked at, in bytes. The names
// of services have at most 133.
const maxName = 512

// errWire is the error of bytes that are not a request.
var errWire = errors.New("not a discovery request: a field does not parse")

// clientNode is what is kept of a client's node message. Everything in it was
// chosen by the client and decides nothing but the shape of resources.
type clientNode struct {
	id, cluster  string
	region, zone string
	userAgent    string
	outbound     netip.AddrPort // metadata outboundKey
}

// request is a discovery request of either protocol, read straight from the
// wire. An acknowledgement costs no allocation: of its names only a hash is
// taken, and they are read when that differs from the request before.
type request struct {
	typ     typ
	typeURL string // of a type that is not served; typ is then types
	node    *clientNode
	nonce   string
	failed  bool   // it carries an error_detail
	detail  string // its text, cut

	subscribe   []string          // delta
	unsubscribe []string          // delta
	offered     map[string]string // delta: initial_resource_versions

	version string   // state of the world: version_info
	names   []string // state of the world, when the list differs from the one before it
	same    bool     // state of the world: it does not differ

	lists    *nameLists // state of the world: hashes of the lists before, per type
	wantNode bool       // the node of this stream is not known yet
	limit    requestLimit
}

// requestLimit is how much of a request is read: a client must not make us hold
// more than a stream may use. What is over it is not kept, but its presence is.
type requestLimit struct{ names, offered int }

// typeName names the type for people.
func (r *request) typeName() string {
	if r.typ == types {
		return r.typeURL
	}
	return r.typ.String()
}

// done lets go of what a request brought.
func (r *request) done() { r.subscribe, r.unsubscribe, r.offered, r.names = nil, nil, nil, nil }

// nameLists holds an order-free hash of the last list of names per type.
type nameLists struct {
	seed maphash.Seed
	last [types]uint64
	seen [types]bool
}

// plain reports whether the request changes no subscription and rejects nothing.
func (r *request) plain() bool {
	return !r.failed && r.nonce != "" && r.subscribe == nil && r.unsubscribe == nil && (r.lists == nil || r.same)
}

// each calls do for every length-delimited field of a message.
func each(b []byte, do func(n protowire.Number, v []byte) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errWire
		}
		b = b[size:]
		if kind != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
				return errWire
			}
			b = b[size:]
			continue
		}
		v, size := protowire.ConsumeBytes(b)
		if size < 0 {
			return errWire
		}
		b = b[size:]
		if err := do(n, v); err != nil {
			return err
		}
	}
	return nil
}

// typeOf finds the served type of that URL.
func (r *request) setType(url []byte) {
	r.typ, r.typeURL = types, ""
	for t := range types {
		if string(url) == typeURLs[t] {
			r.typ = t
			return
		}
	}
	r.typeURL = strings.ToValidUTF8(string(url[:min(len(url), maxName)]), "?")
}

// resourceText checks the name of a resource.
func resourceText(v []byte) (string, error) {
	if len(v) > maxName {
		return "", fmt.Errorf("a resource name of %d bytes: names have at most %d", len(v), maxName)
	}
	if !utf8.Valid(v) {
		return "", errors.New("a resource name is not UTF-8")
	}
	return string(v), nil
}

// deltaMessage and sotwMessage say in which protocol a request is read.
type (
	deltaMessage struct{ *request }
	sotwMessage  struct{ *request }
)

// readWire reads a DeltaDiscoveryRequest.
func (m deltaMessage) readWire(b []byte) error {
	r := m.request
	*r = request{typ: types, wantNode: r.wantNode, limit: r.limit}
	return each(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case 1:
			err = r.readNode(v)
		case 2:
			r.setType(v)
		case 3:
			r.subscribe, err = r.appendName(r.subscribe, v)
		case 4:
			r.unsubscribe, err = r.appendName(r.unsubscribe, v)
		case 5:
			err = r.readOffered(v)
		case 6:
			r.nonce = string(v[:min(len(v), maxNonce+1)])
		case 7:
			r.readDetail(v)
		}
		return err
	})
}

// readWire reads a DiscoveryRequest. Its names precede its type on the wire, so
// it is walked twice.
func (m sotwMessage) readWire(b []byte) error {
	r := m.request
	*r = request{typ: types, lists: r.lists, wantNode: r.wantNode, limit: r.limit}
	var list uint64
	err := each(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case 1:
			r.version = string(v[:min(len(v), maxName)])
		case 2:
			err = r.readNode(v)
		case 3:
			list += maphash.Bytes(r.lists.seed, v)
		case 4:
			r.setType(v)
		case 5:
			r.nonce = string(v[:min(len(v), maxNonce+1)])
		case 6:
			r.readDetail(v)
		}
		return err
	})
	if err != nil || r.typ == types {
		return err
	}
	if r.same = r.lists.seen[r.typ] && r.lists.last[r.typ] == list; r.same {
		return nil
	}
	r.lists.seen[r.typ], r.lists.last[r.typ] = true, list
	return each(b, func(n protowire.Number, v []byte) (err error) {
		if n == 3 {
			r.names, err = r.appendName(r.names, v)
		}
		return err
	})
}

func (r *request) appendName(to []string, v []byte) ([]string, error) {
	if len(to) > r.limit.names {
		return to, nil
	}
	s, err := resourceText(v)
	if err != nil {
		return to, err
	}
	return append(to, s), nil
}

func (r *request) readOffered(b []byte) error {
	if len(r.offered) > r.limit.offered {
		return nil
	}
	var name, version string
	err := each(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case 1:
			name, err = resourceText(v)
		case 2:
			version = string(v[:min(len(v), maxName)])
		}
		return err
	})
	if r.offered == nil {
		r.offered = make(map[string]string)
	}
	r.offered[name] = version
	return err
}

// maxDetail is how much of a client's complaint is kept, in bytes.
const maxDetail = 1 << 10

// readDetail reads a google.rpc.Status, of which the message counts.
func (r *request) readDetail(b []byte) {
	r.failed = true
	_ = each(b, func(n protowire.Number, v []byte) error {
		if n == 2 {
			r.detail = strings.ToValidUTF8(string(v[:min(len(v), maxDetail)]), "?")
		}
		return nil
	})
}

// readNode reads a config.core.v3.Node, on the first request only.
func (r *request) readNode(b []byte) error {
	if !r.wantNode {
		return nil
	}
	n := &clientNode{}
	r.node = n
	return each(b, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			n.id = nodeText(v)
		case 2:
			n.cluster = nodeText(v)
		case 3:
			n.readMetadata(v)
		case 4:
			return each(v, func(field protowire.Number, v []byte) error {
				switch field {
				case 1:
					n.region = nodeText(v)
				case 2:
					n.zone = nodeText(v)
				}
				return nil
			})
		case 6:
			n.userAgent = nodeText(v)
		}
		return nil
	})
}

// readMetadata looks for outboundKey in a google.protobuf.Struct.
func (n *clientNode) readMetadata(b []byte) {
	_ = each(b, func(_ protowire.Number, entry []byte) error {
		var key string
		var value []byte
		_ = each(entry, func(field protowire.Number, v []byte) error {
			switch field {
			case 1:
				key = nodeText(v)
			case 2:
				value = v
			}
			return nil
		})
		if key != outboundKey {
			return nil
		}
		return each(value, func(field protowire.Number, v []byte) error {
			if a, err := netip.ParseAddrPort(string(v)); field == 3 && err == nil {
				n.outbound = a
			}
			return nil
		})
	})
}

// nodeText keeps a client's own words short and printable.
func nodeText(v []byte) string {
	return strings.ToValidUTF8(string(v[:min(len(v), 256)]), "?")
}
