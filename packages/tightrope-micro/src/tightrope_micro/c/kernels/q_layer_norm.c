/* Layer norm of rows of 16 bits by the kernel that was made for its weights. */
void k_q_layer_norm(const int16_t *x, int8_t *y, int rows, void (*norm)(const int16_t *, int8_t *, uint32_t))
{
    norm(x, y, (uint32_t)rows);
}
