module specdecode.dev/node/standin

go 1.26.0
