"""The study `certify`: is this set of heads really a circuit of this behaviour?"""
