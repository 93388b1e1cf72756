package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	_ "google.golang.org/grpc/xds" // the xds:/// scheme: what makes this a proxyless caller
)

// grpcCaller is a stock proxyless client: xds:///checkout.shop, and its CSDS
// for what it holds.
type grpcCaller struct {
	conns map[string]*grpc.ClientConn
	admin *grpc.Server
	csds  *grpc.ClientConn
	dump  protoreflect.MessageType // ClientStatusResponse
}

func newGRPCCaller(p Part) (caller, error) {
	c := &grpcCaller{conns: map[string]*grpc.ClientConn{}}
	for _, service := range p.Services {
		conn, err := grpc.NewClient("xds:///"+service+"."+namespace, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		c.conns[service] = conn
	}
	return c, c.serveCSDS()
}

// serveCSDS opens the client's own status service on loopback, the way an
// application does for its operators, and connects to it.
func (c *grpcCaller) serveCSDS() error {
	const response = "envoy.service.status.v3.ClientStatusResponse"
	var err error
	if c.dump, err = protoregistry.GlobalTypes.FindMessageByName(response); err != nil {
		return fmt.Errorf("%s is not linked in: %w", response, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.admin = grpc.NewServer()
	if _, err := admin.Register(c.admin); err != nil {
		return errors.Join(err, l.Close())
	}
	go func() { _ = c.admin.Serve(l) }() // ends with close
	c.csds, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return err
}

func (c *grpcCaller) call(ctx context.Context, service string) error {
	return check(ctx, c.conns[service])
}

// held asks CSDS for every assignment that the client has accepted.
func (c *grpcCaller) held(ctx context.Context) map[string]Held {
	resp := c.dump.New().Interface()
	// An empty message is an empty ClientStatusRequest on the wire.
	if err := c.csds.Invoke(ctx, "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus", &emptypb.Empty{}, resp); err != nil {
		return nil
	}
	return assignments(resp)
}

// assignments reads the ClusterLoadAssignments out of a CSDS answer.
func assignments(resp proto.Message) map[string]Held {
	raw, err := protojson.Marshal(resp)
	if err != nil {
		return nil
	}
	var dump struct {
		Config []struct {
			GenericXDSConfigs []struct {
				TypeURL     string         `json:"typeUrl"`
				VersionInfo string         `json:"versionInfo"`
				XDSConfig   loadAssignment `json:"xdsConfig"`
			} `json:"genericXdsConfigs"`
		} `json:"config"`
	}
	if json.Unmarshal(raw, &dump) != nil {
		return nil
	}
	out := map[string]Held{}
	for _, target := range dump.Config {
		for _, r := range target.GenericXDSConfigs {
			if service := r.XDSConfig.service(); strings.HasSuffix(r.TypeURL, "ClusterLoadAssignment") && service != "" {
				out[service] = Held{Version: r.VersionInfo, Addresses: r.XDSConfig.addresses()}
			}
		}
	}
	return out
}

// loadAssignment is the part of a ClusterLoadAssignment's JSON that callers
// are judged by; gRPC's CSDS and Envoy's config dump share it.
type loadAssignment struct {
	ClusterName string `json:"clusterName"`
	Snake       string `json:"cluster_name"`
	Endpoints   []struct {
		LBEndpoints      []lbEndpoint `json:"lbEndpoints"`
		LBEndpointsSnake []lbEndpoint `json:"lb_endpoints"`
	} `json:"endpoints"`
}

type lbEndpoint struct {
	Endpoint struct {
		Address struct {
			SocketAddress      socketAddress `json:"socketAddress"`
			SocketAddressSnake socketAddress `json:"socket_address"`
		} `json:"address"`
	} `json:"endpoint"`
}

type socketAddress struct {
	Address        string `json:"address"`
	PortValue      int    `json:"portValue"`
	PortValueSnake int    `json:"port_value"`
}

// service returns the service's name if the assignment is one of ours.
func (l loadAssignment) service() string {
	name, ns, ok := strings.Cut(l.ClusterName+l.Snake, ".")
	if !ok || ns != namespace { // further ports have names of their own: checkout.shop:9090
		return ""
	}
	return name
}

func (l loadAssignment) addresses() []string {
	out := []string{}
	for _, locality := range l.Endpoints {
		for _, e := range append(locality.LBEndpoints, locality.LBEndpointsSnake...) {
			a, b := e.Endpoint.Address.SocketAddress, e.Endpoint.Address.SocketAddressSnake
			out = append(out, net.JoinHostPort(a.Address+b.Address, fmt.Sprint(a.PortValue+a.PortValueSnake+b.PortValue+b.PortValueSnake)))
		}
	}
	return out
}

func (c *grpcCaller) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	if c.csds != nil {
		_ = c.csds.Close()
	}
	c.admin.Stop()
}
