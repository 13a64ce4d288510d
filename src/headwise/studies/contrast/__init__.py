"""Which heads serve one behaviour and not another? Begin with `study.py`."""
