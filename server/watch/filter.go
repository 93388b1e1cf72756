package watch

import (
	"fmt"
	"strconv"

	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// filter is what a client wants, read and checked.
type filter struct {
	names     map[views.Name]bool // nil: all that the caller may see
	resume    views.Version       // zero: nothing to resume from
	held      map[views.Name]holding
	id        uint64
	deltas    bool
	nodeID    string
	userAgent string
}

// holding is a view that the client holds: its versions and, where this stream
// sent it, the view itself, from which a delta can start.
type holding struct {
	endpoint, config views.Version
	view             *views.View
}

func (h holding) is(v *views.View) bool { return h.endpoint == v.Endpoint && h.config == v.Config }

// covers reports whether the filter names the service.
func (f *filter) covers(n views.Name) bool { return f.names == nil || f.names[n] }

// maxLabel bounds what a client says of itself, in bytes: it is listed and logged.
const maxLabel = 256

// parseFilter reads a filter; the error is a status that names the field.
func parseFilter(in *viewv1.Filter, maxNames int) (*filter, error) {
	f := &filter{id: in.GetFilterId(), deltas: in.GetAcceptDeltas(), nodeID: in.GetNodeId(), userAgent: in.GetUserAgent()}
	// What is held is bounded by the size of a message: a mirror of everything
	// holds more than it could name in a filter.
	if maxNames > 0 && len(in.GetServices()) > maxNames {
		return nil, status.Limit("API.WatchFilter", strconv.Itoa(maxNames)+" services in one filter")
	}
	if len(f.nodeID) > maxLabel || len(f.userAgent) > maxLabel {
		return nil, status.Field(status.InvalidField, "filter.node_id", "length", "node_id and user_agent have at most 256 bytes each")
	}
	if len(in.GetServices()) > 0 {
		f.names = make(map[views.Name]bool, len(in.GetServices()))
	}
	for i, s := range in.GetServices() {
		n, err := views.ParseName(s)
		if err != nil {
			return nil, status.Field(status.InvalidField, fmt.Sprintf("filter.services[%d]", i), "service-name", err.Error())
		}
		f.names[n] = true
	}
	if s := in.GetResumeFrom(); s != "" {
		var err error
		if f.resume, err = views.ParseVersion(s); err != nil {
			return nil, status.Field(status.InvalidField, "filter.resume_from", "version", err.Error())
		}
	}
	for i, h := range in.GetHeld() {
		n, err := views.ParseName(h.GetService())
		endpoint, err1 := views.ParseVersion(h.GetEndpointVersion())
		config, err2 := views.ParseVersion(h.GetConfigVersion())
		if err != nil || err1 != nil || err2 != nil {
			return nil, status.Field(status.InvalidField, fmt.Sprintf("filter.held[%d]", i), "held",
				"must have a service and its two versions, as epoch.seq")
		}
		if f.held == nil {
			f.held = make(map[views.Name]holding, len(in.GetHeld()))
		}
		f.held[n] = holding{endpoint: endpoint, config: config}
	}
	return f, nil
}
