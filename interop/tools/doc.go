// Package tools is the black-box suite with tools that people have at hand,
// grpcurl and dig, against the built binary.
package tools
