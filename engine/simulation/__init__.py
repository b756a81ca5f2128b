"""The real engine in virtual time: everything but the device, whose steps and copies take modelled time. Torch-free."""
