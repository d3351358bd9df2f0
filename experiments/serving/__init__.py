"""How far served models are ahead of other runtimes: OpenVINO, ONNX Runtime, oneDNN and torch, at equal precision."""
