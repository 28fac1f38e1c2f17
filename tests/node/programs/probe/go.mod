module specdecode.dev/node/probe

go 1.26.0
