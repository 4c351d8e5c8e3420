"""The policy gateway: the one server between scaffolds and vLLM.

It pins the sampling of every call, keeps everything that is said, holds calls while the model server is down, and is
the evidence of what went wrong with the model.
"""
