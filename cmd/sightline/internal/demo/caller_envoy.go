package demo

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// envoyCaller calls through a real Envoy beside it, which routes by the host
// that is asked for; what Envoy holds is read from its admin page.
type envoyCaller struct {
	conns map[string]*grpc.ClientConn
	admin string
}

func newEnvoyCaller(p Part) (caller, error) {
	c := &envoyCaller{conns: map[string]*grpc.ClientConn{}, admin: p.Admin}
	for _, service := range p.Services {
		conn, err := grpc.NewClient(p.Outbound,
			grpc.WithAuthority(service+"."+namespace),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		c.conns[service] = conn
	}
	return c, nil
}

func (c *envoyCaller) call(ctx context.Context, service string) error {
	return check(ctx, c.conns[service])
}

func (c *envoyCaller) held(ctx context.Context) map[string]Held {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin+"/config_dump?resource=dynamic_endpoint_configs&include_eds", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var dump struct {
		Configs []struct {
			VersionInfo    string         `json:"version_info"`
			EndpointConfig loadAssignment `json:"endpoint_config"`
		} `json:"configs"`
	}
	if json.NewDecoder(resp.Body).Decode(&dump) != nil {
		return nil
	}
	out := map[string]Held{}
	for _, r := range dump.Configs {
		if service := r.EndpointConfig.service(); service != "" {
			version, _, _ := strings.Cut(r.VersionInfo, "-") // a delta version ends in what shaped the bytes
			out[service] = Held{Version: version, Addresses: r.EndpointConfig.addresses()}
		}
	}
	return out
}

func (c *envoyCaller) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}
